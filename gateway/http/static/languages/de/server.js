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
  "its server takes messages: counts are estimates until the end, and an answer that is lost does not go on elsewhere": "ihr Server nimmt Nachrichten: Zahlen sind bis zum Ende geschätzt, und eine verlorene Antwort geht nirgends weiter",
  "the conversation has used the {tier} tier and does not go below it": "der Chat hat die Stufe {tier} benutzt und geht nicht darunter",
  "the prompt does not fit the {tier} tier's context": "der Text passt nicht in den Kontext der Stufe {tier}",
  "the {busy} tier has a queue, the {tier} tier answers sooner": "vor Stufe {busy} wird gewartet, Stufe {tier} antwortet früher",
  "the {closed} tier is not open to this request, the {tier} tier is next": "Stufe {closed} steht dieser Anfrage nicht offen, Stufe {tier} ist die nächste",
  "the {tier} tier is asleep; the turn waits for an engine": "Stufe {tier} schläft; die Frage wartet auf eine Engine",
  "the {wanted} tier {state}, the {tier} tier stands in": "Stufe {wanted} {state}, Stufe {tier} springt ein",
  "{replica} did not answer, {other} stands in": "{replica} hat nicht geantwortet, {other} springt ein",
  "could not be fetched yet": "konnte noch nicht geladen werden",
  "cannot do what {field} asks for": "kann nicht, was {field} verlangt",
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

  "too many wrong API keys or tickets came from your address; wait, and correct the key": "Von dieser Adresse kamen zu viele falsche API-Schlüssel. Bitte warten und den Schlüssel berichtigen.",

  // Signing in
  "{title} · Roundhouse": "{title} · Roundhouse",
  "Administration": "Verwaltung",
  "Chat": "Chat",
  "Choose where you have an account.": "Bitte wählen, wo ein Konto besteht.",
  "No identity provider is configured here.": "Hier ist kein Identitätsanbieter eingerichtet.",
  "Nobody has signed in": "Die Anmeldung ist fehlgeschlagen",
  "Operators can sign in on the machine of the gateway by the address that this prints: {command}": "Betreiber können sich auf der Maschine des Gateways über die Adresse anmelden, die dieser Befehl ausgibt: {command}",
  "Sign in": "Anmelden",
  "Sign out": "Abmelden",
  "Signed in": "Angemeldet",
  "Signing in needs HTTPS. Open this server by its https:// address.": "Die Anmeldung braucht HTTPS. Diesen Server bitte über seine https://-Adresse öffnen.",
  "The answer belongs to another sign-in, perhaps in another tab. Sign in again.": "Die Antwort gehört zu einer anderen Anmeldung, vielleicht in einem anderen Tab. Bitte noch einmal anmelden.",
  "The answer comes from another identity provider. Sign in again.": "Die Antwort kommt von einem anderen Identitätsanbieter. Bitte noch einmal anmelden.",
  "The gateway cannot read its secret for this identity provider; tell its operator.": "Das Gateway kann sein Geheimnis für diesen Identitätsanbieter nicht lesen. Bitte den Betreiber verständigen.",
  "The identity provider cannot be reached at the moment. Try again in a few seconds.": "Der Identitätsanbieter ist im Moment nicht erreichbar. Bitte in ein paar Sekunden noch einmal versuchen.",
  "The identity provider does not answer at the moment. Sign in again.": "Der Identitätsanbieter antwortet im Moment nicht. Bitte noch einmal anmelden.",
  "The identity provider gives no token for this sign-in{error}. Sign in again; if that does not help, tell the operator of this server.": "Der Identitätsanbieter gibt für diese Anmeldung kein Token{error}. Bitte noch einmal anmelden; wenn das nicht hilft, den Betreiber dieses Servers verständigen.",
  "The identity provider has refused{error}. Sign in again.": "Der Identitätsanbieter hat abgelehnt{error}. Bitte noch einmal anmelden.",
  "This address was used before, or is older than ten minutes. Run this command on the machine of the gateway to get another one: {command}": "Diese Adresse wurde schon benutzt oder ist älter als zehn Minuten. Eine neue gibt dieser Befehl auf der Maschine des Gateways aus: {command}",
  "This address works in a browser on the machine of the gateway only, without a proxy. Elsewhere sign in with an API key or at an identity provider.": "Diese Adresse gilt nur in einem Browser auf der Maschine des Gateways, ohne Proxy. Anderswo bitte mit einem API-Schlüssel oder bei einem Identitätsanbieter anmelden.",
  "This identity provider is not configured any more. Sign in another way.": "Dieser Identitätsanbieter ist nicht mehr eingerichtet. Bitte auf anderem Weg anmelden.",
  "This sign-in was begun in another browser, or more than ten minutes ago. Sign in again; the browser must accept cookies of this server.": "Diese Anmeldung wurde in einem anderen Browser oder vor mehr als zehn Minuten begonnen. Bitte noch einmal anmelden; der Browser muss Cookies dieses Servers annehmen.",
  "Ways to sign in": "Wege zur Anmeldung",
  "You are signed in as {who}.": "Angemeldet als {who}.",
  "the operator of this server": "Betreiber dieses Servers",

  // What needs attention
  "{subject} of {tenant} has used {share} of its {budget}: ${used} of ${most}": "{subject} von {tenant} hat {share} verbraucht ({budget}): {used} $ von {most} $",
  "{tenant} has used {share} of its {budget}: ${used} of ${most}": "{tenant} hat {share} verbraucht ({budget}): {used} $ von {most} $",
  "daily budget": "Tagesbudget",
  "monthly budget": "Monatsbudget",
  "the canary {model} of {route} was taken out: {signal}": "der Canary {model} von {route} wurde herausgenommen: {signal}",
  "empty answers": "leere Antworten",
  "failures": "Ausfälle",
  "late first tokens": "verspätete erste Tokens",
  "the replica {replica} of {model} does not answer": "das Replikat {replica} von {model} antwortet nicht",
  "the replica {replica} of {model} fails and gets no turns for a while": "das Replikat {replica} von {model} fällt aus und erhält eine Weile keine Anfragen",
  "the semantic cache of {tenant} gives no answers of one kind or more: too many would be wrong": "der semantische Cache von {tenant} gibt Antworten mindestens einer Art nicht: zu viele wären falsch",

  // What a rule refuses
  "this request's {what} is far above what this key usually sends; slow down": "Diese Anfrage geht weit über das hinaus, was dieser Schlüssel sonst sendet ({what}). Bitte langsamer.",
  "{path}: it holds what this server does not accept ({rule}); leave it out": "Die Frage enthält etwas, das dieser Server nicht annimmt ({rule}). Bitte weglassen. [{path}]",
};
