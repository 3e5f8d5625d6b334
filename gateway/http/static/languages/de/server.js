/**
 * What the server says itself, in German: why the router chose a tier, why a key or a question is refused. What stands in
 * a place is translated too, if it is here.
 *
 * @type {Record<string, string>}
 */
export default {
  "small": "klein",
  "medium": "mittel",
  "large": "groß",

  // What the tiers are worth
  "complexity {score} {price}asks for the {tier} tier": "Komplexität {score} verlangt {price}die Stufe {tier}",
  "at this price of quality ": "bei diesem Preis der Qualität ",
  "expected to be answered well: {shares}; at this price of quality that asks for {tier}": "voraussichtlich gut beantwortet: {shares}; das verlangt bei diesem Preis der Qualität {tier}",
  "it is unlike the questions that success was learnt from": "die Frage gleicht keiner von denen, aus denen der Erfolg gelernt wurde",
  "little is known of requests like this one: the {tier} tier": "über solche Anfragen ist wenig bekannt: Stufe {tier}",
  "the {tier} tier was drawn, to see how it does": "Stufe {tier} wurde ausgelost, um zu sehen, wie sie sich macht",
  "{unknown}tiers get fixed shares of requests, whatever they ask, and this one goes to {tier}": "{unknown}die Stufen bekommen feste Anteile aller Anfragen, und diese geht an {tier}",
  "not calibrated for these models: ": "für diese Modelle nicht kalibriert: ",

  // What makes a question complex
  "{sign} (+{contribution})": "{sign} (+{contribution})",
  "asks for an explanation or comparison": "verlangt eine Erklärung oder einen Vergleich",
  "asks how to do something": "fragt, wie etwas geht",
  "contains a calculation": "enthält eine Rechnung",
  "contains code": "enthält Code",
  "continues a conversation": "setzt ein Gespräch fort",
  "has several parts": "hat mehrere Teile",
  "is a question": "ist eine Frage",
  "its length": "ihre Länge",
  "sets conditions": "stellt Bedingungen",
  "uses technical terms": "benutzt Fachwörter",
  "wants something written or worked out": "will etwas geschrieben oder ausgearbeitet haben",

  // What changed the choice
  "the conversation has used the {tier} tier and does not go below it": "der Chat hat die Stufe {tier} benutzt und geht nicht darunter",
  "the prompt does not fit the {tier} tier's context": "der Text passt nicht in den Kontext der Stufe {tier}",
  "the {busy} tier has a queue, the {tier} tier answers sooner": "vor Stufe {busy} wird gewartet, Stufe {tier} antwortet früher",
  "the {closed} tier is not open to this request, the {tier} tier is next": "Stufe {closed} steht dieser Anfrage nicht offen, Stufe {tier} ist die nächste",
  "the {tier} tier is asleep; the turn waits for an engine": "Stufe {tier} schläft; die Frage wartet auf eine Engine",
  "the {wanted} tier {state}, the {tier} tier stands in": "Stufe {wanted} {state}, Stufe {tier} springt ein",
  "{replica} did not answer, {other} stands in": "{replica} hat nicht geantwortet, {other} springt ein",
  "could not be fetched yet": "konnte noch nicht geladen werden",
  "cannot hold the prompt": "kann den Text nicht fassen",
  "is asleep": "schläft",
  "is below the {tier} tier, which the conversation has used": "liegt unter Stufe {tier}, die der Chat benutzt hat",
  "is coming: {percent} % of {size} MB": "kommt: {percent} % von {size} MB",
  "is full": "ist voll",
  "is not available": "ist nicht verfügbar",
  "is not open to this request": "steht dieser Anfrage nicht offen",
  "is out of service: its checkpoint cannot be used": "ist außer Betrieb: ihr Checkpoint ist nicht brauchbar",
  "is starting": "startet",

  // Names
  "it is an adapter of {model}": "das ist ein Adapter von {model}",
  "the name {route} leads this conversation to {model}": "der Name {route} führt diesen Chat zu {model}",
  "the request names {name}": "die Anfrage nennt {name}",

  // The cache
  "the same request is being answered by the {tier} tier: that answer is given here too": "dieselbe Anfrage wird gerade von Stufe {tier} beantwortet: Diese Antwort gilt auch hier",
  "the same request was answered by the {tier} tier before: that answer is given again": "dieselbe Anfrage hat Stufe {tier} schon beantwortet: Diese Antwort gilt wieder",

  // Who asks
  "incorrect API key; check that it is whole, or ask for a new one": "Dieser API-Schlüssel ist falsch. Bitte prüfen, ob er vollständig ist, oder einen neuen besorgen.",
  "the API key of this connection was deleted; connect with another one": "Dieser API-Schlüssel wurde gelöscht. Bitte einen anderen verwenden.",
  "the identity provider of this session is not trusted any more": "Dem Identitätsanbieter dieser Anmeldung wird nicht mehr vertraut.",
  "the tenant of this key or token is disabled or does not exist": "Die Organisation dieses Schlüssels ist deaktiviert oder existiert nicht.",
  "the token of this connection has expired; connect with a new one": "Die Anmeldung ist abgelaufen. Bitte neu anmelden.",
  "the user of this API key is disabled": "Das Konto dieses API-Schlüssels ist deaktiviert.",
  "the user of this token is disabled": "Dieses Konto ist deaktiviert.",
  "this API key has expired; use the one that replaces it": "Dieser API-Schlüssel ist abgelaufen. Bitte den verwenden, der ihn ersetzt.",
  "this API key is disabled": "Dieser API-Schlüssel ist deaktiviert.",
  "this key or token lacks the scope '{scope}'; use one that has it": "Dieser Schlüssel hat das Recht „{scope}“ nicht. Bitte einen verwenden, der es hat.",
  "you are not signed in any more; sign in again": "Die Anmeldung ist abgelaufen. Bitte neu anmelden.",

  // What a rule refuses
  "this request's {what} is far above what this key usually sends; slow down": "Diese Anfrage geht weit über das hinaus, was dieser Schlüssel sonst sendet ({what}). Bitte langsamer.",
  "{path}: it holds what this server does not accept ({rule}); leave it out": "Die Frage enthält etwas, das dieser Server nicht annimmt ({rule}). Bitte weglassen. [{path}]",

  // The next tier
  "the {first} tier's answer {what}: the {tier} tier is expected to do better by {gain}, and {paid} would have been enough at this price of quality": "die Antwort von Stufe {first} {what}: Stufe {tier} wird voraussichtlich um {gain} besser antworten, und {paid} wären bei diesem Preis der Qualität genug gewesen",
  "was a refusal": "war eine Weigerung",
  "was empty": "war leer",
  "was not in the format that was asked for": "hatte nicht die verlangte Form",
  "was of tokens that it found unlikely itself": "bestand aus Tokens, die sie selbst für unwahrscheinlich hielt",
};
