/**
 * The pages for signing in, in German: the server says all of it. Why a key or a person is refused is in `answers.js`.
 *
 * @type {import("../../js/language.js").Sentences}
 */
export const said = {
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
};
